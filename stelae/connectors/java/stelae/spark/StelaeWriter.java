package stelae.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.Map;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;

/**
 * One attempt of a task: its rows go to the helper as an Arrow stream, which lays them aside until
 * it is told to commit. A connection that ends before that leaves nothing.
 */
final class StelaeWriter implements DataWriter<InternalRow> {
    private static final int BATCH_ROWS = 1 << 13;

    private final SocketChannel channel;
    private final BufferAllocator allocator;
    private final VectorSchemaRoot root;
    private final ArrowWriter rows;
    private final ArrowStreamWriter stream;
    private int count;

    StelaeWriter(String python, byte[] plan, StructType schema, int partition, long epoch) {
        Schema arrow = arrowOf(schema); // first: it may throw
        String header =
            Json.of(Map.of("what", "write", "partition", partition, "epoch", epoch));
        allocator = ArrowUtils.rootAllocator().newChildAllocator("stelae", 0, Long.MAX_VALUE);
        VectorSchemaRoot made = null;
        try {
            made = VectorSchemaRoot.create(arrow, allocator);
            rows = ArrowWriter.create(made);
            root = made;
            channel = Helper.send(python, header, plan);
        } catch (IOException error) {
            close(made, allocator);
            throw new UncheckedIOException(error.getMessage(), error);
        } catch (RuntimeException error) {
            close(made, allocator);
            throw error;
        }
        stream = new ArrowStreamWriter(root, null, channel);
    }

    /** As rows are sent. Throws what Spark says of a type that Arrow lacks. */
    static Schema arrowOf(StructType schema) {
        return ArrowUtils.toArrowSchema(schema, "UTC", true, false);
    }

    private static void close(VectorSchemaRoot root, BufferAllocator allocator) {
        try {
            if (root != null) {
                root.close();
            }
        } finally {
            allocator.close();
        }
    }

    @Override
    public void write(InternalRow row) throws IOException {
        rows.write(row);
        if (++count == BATCH_ROWS) {
            flush();
        }
    }

    private void flush() throws IOException {
        rows.finish();
        stream.writeBatch();
        rows.reset();
        count = 0;
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
        if (count > 0) {
            flush();
        }
        stream.end();
        Helper.sendFrame(channel, new byte[] {1});
        long written = ByteBuffer.wrap(Helper.answer(channel).get(0)).getLong();
        return new StelaeWrite.Written(written);
    }

    @Override
    public void abort() throws IOException {
        channel.close();
    }

    @Override
    public void close() throws IOException {
        try {
            channel.close(); // first: closing the stream must not end it as if it were whole
        } finally {
            close(root, allocator);
        }
    }
}
