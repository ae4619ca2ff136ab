package stelae.spark;

import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** What is read of a table: columns and filters go to the servers, a share is a partition. */
final class StelaeScan
        implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsPushDownV2Filters, Scan,
            Batch {
    private final StelaeTable table;
    private StructType columns;
    private Predicate[] pushed = new Predicate[0];

    StelaeScan(StelaeTable table) {
        this.table = table;
        this.columns = table.schema();
    }

    @Override
    public void pruneColumns(StructType required) {
        // Whole columns: of a struct, Spark may ask for some fields, and the servers bring all.
        StructType whole = new StructType();
        for (String name : required.fieldNames()) {
            whole = whole.add(table.schema().apply(name));
        }
        columns = whole;
    }

    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
        List<Predicate> ours = new ArrayList<>();
        List<Predicate> sparks = new ArrayList<>();
        long groups = 1;
        for (Predicate predicate : predicates) {
            List<List<Object>> found = Filters.groups(predicate, table.schema());
            if (found != null && groups * found.size() <= Filters.MAX_GROUPS) {
                groups *= found.size();
                ours.add(predicate);
            } else {
                sparks.add(predicate);
            }
        }
        pushed = ours.toArray(new Predicate[0]);
        return sparks.toArray(new Predicate[0]);
    }

    @Override
    public Predicate[] pushedPredicates() {
        return pushed;
    }

    @Override
    public Scan build() {
        return this;
    }

    @Override
    public StructType readSchema() {
        return columns;
    }

    @Override
    public String description() {
        return table.name() + " " + Arrays.toString(columns.fieldNames()) + " where "
            + Arrays.toString(pushed);
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        List<Object> where = new ArrayList<>();
        for (Predicate predicate : pushed) {
            where.add(Filters.groups(predicate, table.schema()));
        }
        Map<String, Object> request = StelaeSource.request("plan", table.options());
        request.put("columns", Arrays.asList(columns.fieldNames()));
        request.put("where", where);
        try {
            List<byte[]> plans = Helper.call(
                StelaeSource.python(table.options()), Json.of(request), table.snapshot());
            return plans.stream().map(Share::new).toArray(InputPartition[]::new);
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new Readers(StelaeSource.python(table.options()), columns.isEmpty());
    }

    /** What one task reads: made by the helper, for the helper. */
    record Share(byte[] plan) implements InputPartition, Serializable {}

    /** {@code countOnly}: no column is wanted, so that one is read only to be counted. */
    record Readers(String python, boolean countOnly)
            implements PartitionReaderFactory, Serializable {
        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
            return new StelaeReader(python, ((Share) partition).plan(), countOnly);
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            throw new UnsupportedOperationException("rows come in columns");
        }
    }
}
