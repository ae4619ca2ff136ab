package stelae.spark;

import java.util.Map;

/** JSON of what requests hold: strings, numbers, booleans, maps and lists of them. */
final class Json {
    private Json() {}

    static String of(Object value) {
        StringBuilder text = new StringBuilder();
        write(text, value);
        return text.toString();
    }

    private static void write(StringBuilder text, Object value) {
        if (value instanceof Map<?, ?> map) {
            String comma = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                text.append(comma);
                write(text, entry.getKey().toString());
                text.append(':');
                write(text, entry.getValue());
                comma = ",";
            }
            text.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof Iterable<?> list) {
            text.append('[');
            String comma = "";
            for (Object item : list) {
                text.append(comma);
                write(text, item);
                comma = ",";
            }
            text.append(']');
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            text.append(value);
        } else {
            quote(text, value.toString());
        }
    }

    private static void quote(StringBuilder text, String value) {
        text.append('"');
        for (char c : value.toCharArray()) {
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < ' ') {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        text.append('"');
    }
}
