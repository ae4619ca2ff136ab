package stelae.spark;

import java.io.BufferedReader;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * A Python process beside this JVM, which speaks to the cluster: one for each JVM, started when it
 * is needed first, and ended with it. Each call has a connection of its own, which a fork serves.
 */
final class Helper {
    private static final String MODULE = "stelae.connectors.spark_helper";
    private static Process process;
    private static UnixDomainSocketAddress address;

    private Helper() {}

    /** A connection on which one request has been sent. */
    static SocketChannel send(String python, String header, byte[] body) throws IOException {
        SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX);
        try {
            channel.connect(address(python));
            sendFrame(channel, header.getBytes(StandardCharsets.UTF_8));
            sendFrame(channel, body);
            return channel;
        } catch (IOException | RuntimeException error) {
            channel.close();
            throw error;
        }
    }

    private static synchronized UnixDomainSocketAddress address(String python) throws IOException {
        if (process == null || !process.isAlive()) {
            ProcessBuilder builder = new ProcessBuilder(python, "-m", MODULE);
            builder.redirectError(ProcessBuilder.Redirect.INHERIT);
            // Its end of the pipe closes when this JVM ends, however it does.
            Process started = builder.start();
            BufferedReader told = new BufferedReader(
                new InputStreamReader(started.getInputStream(), StandardCharsets.UTF_8));
            String path = told.readLine();
            if (path == null) {
                throw new IOException(
                    "Stelae's helper did not start: `" + python + " -m " + MODULE
                        + "` has ended; is the package stelae installed for this Python? Say which"
                        + " Python with the option python");
            }
            process = started;
            address = UnixDomainSocketAddress.of(path);
        }
        return address;
    }

    static void sendFrame(SocketChannel channel, byte[] content) throws IOException {
        ByteBuffer frame = ByteBuffer.allocate(4 + content.length);
        frame.putInt(content.length).put(content).flip();
        while (frame.hasRemaining()) {
            channel.write(frame);
        }
    }

    private static byte[] receiveFrame(SocketChannel channel) throws IOException {
        ByteBuffer size = receive(channel, 4);
        return receive(channel, size.getInt()).array();
    }

    private static ByteBuffer receive(SocketChannel channel, int count) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocate(count);
        while (buffer.hasRemaining()) {
            if (channel.read(buffer) < 0) {
                throw new EOFException("Stelae's helper has ended in the middle of an answer");
            }
        }
        return buffer.flip();
    }

    /** The frames of an answer: an error's text, or empty; then as many as there are. */
    static List<byte[]> answer(SocketChannel channel) throws IOException {
        String error = new String(receiveFrame(channel), StandardCharsets.UTF_8);
        if (!error.isEmpty()) {
            throw new IOException(error);
        }
        int count = receive(channel, 4).getInt();
        List<byte[]> frames = new ArrayList<>(count);
        for (int n = 0; n < count; n++) {
            frames.add(receiveFrame(channel));
        }
        return frames;
    }

    static void close(List<SocketChannel> channels) {
        for (SocketChannel channel : channels) {
            try {
                channel.close();
            } catch (IOException error) {
                // The helper has ended, and with it what it held.
            }
        }
    }

    /** One request and its answer. */
    static List<byte[]> call(String python, String header, byte[] body) throws IOException {
        try (SocketChannel channel = send(python, header, body)) {
            return answer(channel);
        }
    }
}
