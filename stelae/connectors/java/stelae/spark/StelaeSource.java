package stelae.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** {@code format("stelae")}. Options: table, cluster, python, partition_bytes, mode. */
public final class StelaeSource implements TableProvider, DataSourceRegister {
    /** How tasks reach the cluster: as only the helper understands it, and secret. */
    private byte[] link;

    @Override
    public String shortName() {
        return "stelae";
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        try {
            link = Helper.call(
                python(options), Json.of(request("link", options)), new byte[0]).get(0);
            byte[] told =
                Helper.call(python(options), Json.of(request("schema", options)), link).get(0);
            return (StructType) DataType.fromJson(new String(told, StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }

    @Override
    public Table getTable(
            StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new StelaeTable(schema, new CaseInsensitiveStringMap(properties), link);
    }

    /** What every request of a table says. */
    static Map<String, Object> request(String what, CaseInsensitiveStringMap options) {
        String table = options.get("table") == null ? options.get("path") : options.get("table");
        if (table == null) {
            throw new IllegalArgumentException(
                "which table? say .option(\"table\", name) or .load(name)");
        }
        Map<String, Object> request = new HashMap<>();
        request.put("what", what);
        request.put("table", table);
        String cluster = options.get("cluster");
        request.put("cluster", cluster == null ? configured("cluster") : cluster);
        request.put("ray", configured("ray"));
        request.put("partition_bytes", options.getLong("partition_bytes", 0));
        return request;
    }

    private static String configured(String name) {
        return setting("spark.stelae." + name);
    }

    private static String setting(String name) {
        return SparkSession.active().sparkContext().conf().get(name, null);
    }

    /** The Python of the workers of this session. */
    static String python(CaseInsensitiveStringMap options) {
        String named = options.get("python");
        if (named == null) {
            named = setting("spark.pyspark.python");
        }
        if (named == null) {
            named = System.getenv("PYSPARK_PYTHON");
        }
        return named == null ? "python3" : named;
    }
}
