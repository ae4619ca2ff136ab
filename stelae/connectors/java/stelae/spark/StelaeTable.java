package stelae.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.ref.Cleaner;
import java.nio.channels.SocketChannel;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One table. It is pinned when it is read first, for as long as anything made of it is in use: the
 * helper keeps the pins while a connection is open.
 */
final class StelaeTable implements SupportsRead, SupportsWrite {
    static final Cleaner CLEANER = Cleaner.create();

    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private final byte[] link;
    private byte[] snapshot;

    StelaeTable(StructType schema, CaseInsensitiveStringMap options, byte[] link) {
        this.link = link;
        this.schema = schema;
        this.options = options;
    }

    /** The pinned table, as only the helper understands it. */
    synchronized byte[] snapshot() {
        if (snapshot == null) {
            try {
                String header = Json.of(StelaeSource.request("pin", options));
                SocketChannel held =
                    Helper.send(StelaeSource.python(options), header, link);
                CLEANER.register(this, closing(held));
                snapshot = Helper.answer(held).get(0);
            } catch (IOException error) {
                throw new UncheckedIOException(error.getMessage(), error);
            }
        }
        return snapshot;
    }

    /** Refers to the channel alone: the table itself would never be let go. */
    private static Runnable closing(SocketChannel channel) {
        return () -> Helper.close(List.of(channel));
    }

    CaseInsensitiveStringMap options() {
        return options;
    }

    @Override
    public String name() {
        return "stelae " + StelaeSource.request("", options).get("table");
    }

    @Override
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return EnumSet.of(
            TableCapability.BATCH_READ,
            TableCapability.BATCH_WRITE,
            TableCapability.STREAMING_WRITE,
            TableCapability.TRUNCATE,
            TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        return new StelaeScan(this);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new StelaeWrite(info, link);
    }
}
