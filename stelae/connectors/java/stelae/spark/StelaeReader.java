package stelae.spark;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** One share's rows: an Arrow stream, and after it whether that was all. */
final class StelaeReader implements PartitionReader<ColumnarBatch> {
    private final SocketChannel channel;
    private final BufferAllocator allocator;
    private final ArrowStreamReader stream;
    private final boolean countOnly;
    private ColumnarBatch batch;
    private ColumnVector[] columns;

    StelaeReader(String python, byte[] plan, boolean countOnly) {
        this.countOnly = countOnly;
        try {
            channel = Helper.send(python, "{\"what\":\"read\"}", plan);
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error.getMessage(), error);
        }
        allocator = ArrowUtils.rootAllocator().newChildAllocator("stelae", 0, Long.MAX_VALUE);
        stream = new ArrowStreamReader(channel, allocator);
    }

    @Override
    public boolean next() throws IOException {
        if (!stream.loadNextBatch()) {
            Helper.answer(channel);
            return false;
        }
        VectorSchemaRoot root = stream.getVectorSchemaRoot();
        if (columns == null) {
            columns = countOnly
                ? new ColumnVector[0]
                : root.getFieldVectors().stream()
                    .map((FieldVector vector) -> new ArrowColumnVector(vector))
                    .toArray(ColumnVector[]::new);
            batch = new ColumnarBatch(columns);
        }
        batch.setNumRows(root.getRowCount());
        return true;
    }

    @Override
    public ColumnarBatch get() {
        return batch;
    }

    @Override
    public void close() throws IOException {
        try {
            stream.close(false);
        } finally {
            allocator.close();
            channel.close();
        }
    }
}
