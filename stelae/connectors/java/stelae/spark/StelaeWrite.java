package stelae.spark;

import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A write. Each attempt of a task lays its rows aside; only the one that Spark lets commit writes
 * them. Batches of a stream that are in the table are noted there, and not written again.
 */
final class StelaeWrite
        implements WriteBuilder, SupportsTruncate, SupportsStreamingUpdateAsAppend, Write,
            BatchWrite, StreamingWrite {
    private final CaseInsensitiveStringMap options;
    private final StructType schema;
    private final String writeId;
    private final byte[] link;
    /** While it is open, the helper holds what an overwrite takes out. */
    private final List<SocketChannel> held = new ArrayList<>();
    private boolean overwrites;
    private byte[] plan;

    StelaeWrite(LogicalWriteInfo info, byte[] link) {
        this.link = link;
        options = info.options();
        schema = info.schema();
        StelaeTable.CLEANER.register(this, closing(held));
        writeId = info.queryId();
    }

    private static Runnable closing(List<SocketChannel> channels) {
        return () -> Helper.close(channels);
    }

    @Override
    public WriteBuilder truncate() {
        overwrites = true;
        return this;
    }

    @Override
    public Write build() {
        return this;
    }

    @Override
    public BatchWrite toBatch() {
        begin(false);
        return this;
    }

    @Override
    public StreamingWrite toStreaming() {
        begin(true);
        return this;
    }

    /** What the helper makes of it, checked before any task runs. */
    private void begin(boolean streams) {
        StelaeWriter.arrowOf(schema);
        Map<String, Object> request = StelaeSource.request("begin write", options);
        request.put("columns", Arrays.asList(schema.fieldNames()));
        String mode = options.get("mode");
        request.put("mode", overwrites ? "overwrite" : mode == null ? "upsert" : mode);
        request.put("write_id", writeId);
        request.put("streams", streams);
        try {
            SocketChannel channel =
                Helper.send(StelaeSource.python(options), Json.of(request), link);
            held.add(channel);
            plan = Helper.answer(channel).get(0);
        } catch (IOException error) {
            letGo();
            throw new UncheckedIOException(error.getMessage(), error);
        }
        if (!overwrites) {
            letGo();
        }
    }

    private void letGo() {
        Helper.close(held);
        held.clear();
    }

    private byte[] call(String header, byte[] body) {
        try {
            return Helper.call(StelaeSource.python(options), header, body).get(0);
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }

    @Override
    public boolean useCommitCoordinator() {
        return true;
    }

    @Override
    public Writers createBatchWriterFactory(PhysicalWriteInfo info) {
        return new Writers(StelaeSource.python(options), plan, schema);
    }

    @Override
    public Writers createStreamingWriterFactory(PhysicalWriteInfo info) {
        return createBatchWriterFactory(info);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
        end(-1, messages);
    }

    @Override
    public void commit(long epoch, WriterCommitMessage[] messages) {
        end(epoch, messages);
    }

    private void end(long epoch, WriterCommitMessage[] messages) {
        long rows = 0;
        for (WriterCommitMessage message : messages) {
            rows += message == null ? 0 : ((Written) message).rows();
        }
        Map<String, Object> request = new HashMap<>();
        request.put("what", "end write");
        request.put("epoch", epoch);
        request.put("rows", rows);
        try {
            call(Json.of(request), plan);
        } finally {
            letGo();
        }
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
        letGo(); // rows of tasks that have committed stay: the write as a whole is not atomic
    }

    @Override
    public void abort(long epoch, WriterCommitMessage[] messages) {
        // The batch comes again, under the same request ids.
    }

    /** Of one task: what it wrote is there. */
    record Written(long rows) implements WriterCommitMessage, Serializable {}

    record Writers(String python, byte[] plan, StructType schema)
            implements DataWriterFactory, StreamingDataWriterFactory, Serializable {
        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task) {
            return new StelaeWriter(python, plan, schema, partition, -1);
        }

        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
            return new StelaeWriter(python, plan, schema, partition, epoch);
        }
    }
}
