package stelae.spark;

import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * Spark's predicates as filters of scans: lists of comparisons, of which one list has to hold. What
 * has no exact counterpart is left to Spark, as a whole. A null is kept by neither.
 */
final class Filters {
    static final int MAX_GROUPS = 64;
    private static final Map<String, String> TURNED =
        Map.of("=", "=", "<>", "<>", "<", ">", "<=", ">=", ">", "<", ">=", "<=");
    private static final List<DataType> EXACT = List.of(
        DataTypes.ByteType, DataTypes.ShortType, DataTypes.IntegerType, DataTypes.LongType,
        DataTypes.StringType, DataTypes.BooleanType, DataTypes.DateType, DataTypes.TimestampType,
        DataTypes.TimestampNTZType, DataTypes.DoubleType);
    /** Of the years 1 to 9999, in UTC: the helper's Python has no others. */
    private static final long FIRST_DAY = LocalDate.of(1, 1, 1).toEpochDay();
    private static final long END_DAY = LocalDate.of(10_000, 1, 1).toEpochDay();
    private static final long DAY_US = 86_400_000_000L;
    /** In the metadata of a column whose type here is the very one there. */
    private static final String MARK = "stelae.exact";

    private Filters() {}

    /** Null: it is none. */
    static List<List<Object>> groups(Predicate predicate, StructType schema) {
        Expression[] of = predicate.children();
        switch (predicate.name()) {
            case "AND":
            case "OR":
                List<List<Object>> left = groups((Predicate) of[0], schema);
                List<List<Object>> right = groups((Predicate) of[1], schema);
                if (left == null || right == null) {
                    return null;
                }
                return predicate.name().equals("OR") ? either(left, right) : both(left, right);
            case "ALWAYS_TRUE":
            case "ALWAYS_FALSE":
                return null;
            case "IS_NOT_NULL":
                return null;
            case "IN":
                return isIn(of, schema);
            default:
                return TURNED.containsKey(predicate.name())
                    ? comparison(predicate.name(), of[0], of[1], schema)
                    : null;
        }
    }

    private static List<List<Object>> either(
            List<List<Object>> left, List<List<Object>> right) {
        List<List<Object>> found = new ArrayList<>(left);
        found.addAll(right);
        return found.size() > MAX_GROUPS ? null : found;
    }

    private static List<List<Object>> both(List<List<Object>> left, List<List<Object>> right) {
        if ((long) left.size() * right.size() > MAX_GROUPS) {
            return null;
        }
        List<List<Object>> found = new ArrayList<>();
        for (List<Object> one : left) {
            for (List<Object> other : right) {
                List<Object> all = new ArrayList<>(one);
                all.addAll(other);
                found.add(all);
            }
        }
        return found;
    }

    private static List<List<Object>> comparison(
            String operator, Expression left, Expression right, StructType schema) {
        if (left instanceof Literal && right instanceof NamedReference) {
            return comparison(TURNED.get(operator), right, left, schema);
        }
        if (!(right instanceof Literal<?> literal) || !isExact(left, literal, schema)) {
            return null;
        }
        if (literal.value() instanceof Double number
                && (operator.startsWith(">") || !Double.isFinite(number))) {
            return null; // to Spark, NaN is larger than all others, and like itself
        }
        String name = operator.equals("<>") ? "!=" : operator;
        return one(Arrays.asList(column(left), name, literal.value()));
    }

    private static List<List<Object>> isIn(Expression[] of, StructType schema) {
        List<Object> values = new ArrayList<>();
        for (Expression value : Arrays.asList(of).subList(1, of.length)) {
            if (!(value instanceof Literal<?> literal) || !isExact(of[0], literal, schema)) {
                return null;
            }
            if (literal.value() instanceof Double number && !Double.isFinite(number)) {
                return null;
            }
            values.add(literal.value());
        }
        return values.isEmpty() ? null : one(Arrays.asList(column(of[0]), "in", values));
    }

    private static List<List<Object>> one(List<Object> term) {
        List<List<Object>> groups = new ArrayList<>();
        List<Object> group = new ArrayList<>();
        group.add(term);
        groups.add(group);
        return groups;
    }

    /** Whether the comparison is the same there: values of the column's own type, and not null. */
    private static boolean isExact(Expression left, Literal<?> literal, StructType schema) {
        String name = column(left);
        return name != null
            && literal.value() != null
            && EXACT.contains(literal.dataType())
            && Arrays.asList(schema.fieldNames()).contains(name)
            && schema.apply(name).dataType().equals(literal.dataType())
            && schema.apply(name).metadata().contains(MARK)
            && isInYears(literal);
    }

    private static boolean isInYears(Literal<?> literal) {
        DataType type = literal.dataType();
        if (type.equals(DataTypes.DateType)) {
            int day = (Integer) literal.value();
            return day >= FIRST_DAY && day < END_DAY;
        }
        if (type.equals(DataTypes.TimestampType) || type.equals(DataTypes.TimestampNTZType)) {
            long time = (Long) literal.value();
            return time >= FIRST_DAY * DAY_US && time < END_DAY * DAY_US;
        }
        return true;
    }

    private static String column(Expression expression) {
        if (expression instanceof NamedReference reference
                && reference.fieldNames().length == 1) {
            return reference.fieldNames()[0];
        }
        return null;
    }
}
