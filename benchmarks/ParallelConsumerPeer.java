import com.sun.management.OperatingSystemMXBean;
import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;

/**
 * Handles the records of a topic: SERVERS TOPIC COUNT ORDERING SLOTS NANOSECONDS [FILE].
 *
 * Without a file, each record takes NANOSECONDS. The program prints µs of CPU a record and records a second, measured
 * after the first third of the records, when the JVM has compiled what is hot.
 * With a file, the topic has one partition, and each line of the file has the nanoseconds of one offset. The program
 * handles all records once without waiting, so that the JVM has compiled what is hot, and then prints a line for each
 * call of the second time: offset, begin and end in nanoseconds.
 */
public class ParallelConsumerPeer {
    private static final OperatingSystemMXBean PROCESS =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private interface Handler {
        void handle(ConsumerRecord<byte[], byte[]> record);
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[2]);
        if (arguments.length == 6) {
            printCost(arguments, count, Long.parseLong(arguments[5]));
        } else {
            handleAll(arguments, count, record -> {});
            printCalls(arguments, count, Files.readAllLines(Path.of(arguments[6])));
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void printCost(String[] arguments, int count, long nanoseconds) throws Exception {
        int warmUp = count / 3;
        AtomicInteger handled = new AtomicInteger();
        long[] began = new long[2];
        long[] ended = new long[2];
        handleAll(arguments, count, record -> {
            park(nanoseconds);
            int number = handled.incrementAndGet();
            if (number == warmUp || number == count) {
                long[] moment = number == count ? ended : began;
                moment[0] = PROCESS.getProcessCpuTime();
                moment[1] = System.nanoTime();
            }
        });
        int measured = count - warmUp;
        System.out.println((ended[0] - began[0]) / 1e3 / measured + " " + measured * 1e9 / (ended[1] - began[1]));
    }

    private static void printCalls(String[] arguments, int count, List<String> lines) throws Exception {
        long[] nanoseconds = lines.stream().mapToLong(Long::parseLong).toArray();
        long[] began = new long[count];
        long[] ended = new long[count];
        handleAll(arguments, count, record -> {
            int offset = (int) record.offset();
            began[offset] = System.nanoTime();
            park(nanoseconds[offset]);
            ended[offset] = System.nanoTime();
        });
        StringBuilder calls = new StringBuilder();
        for (int offset = 0; offset < count; offset++) {
            calls.append(offset).append(' ').append(began[offset]).append(' ').append(ended[offset]).append('\n');
        }
        System.out.print(calls);
    }

    private static void handleAll(String[] arguments, int count, Handler handler) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", "java-" + System.nanoTime());
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        var options = ParallelConsumerOptions.<byte[], byte[]>builder()
            .ordering(ParallelConsumerOptions.ProcessingOrder.valueOf(arguments[3]))
            .maxConcurrency(Integer.parseInt(arguments[4]))
            .consumer(new KafkaConsumer<byte[], byte[]>(settings))
            .build();
        var processor = ParallelStreamProcessor.<byte[], byte[]>createEosStreamProcessor(options);
        CountDownLatch left = new CountDownLatch(count);
        processor.subscribe(List.of(arguments[1]));
        processor.poll(context -> {
            handler.handle(context.getSingleConsumerRecord());
            left.countDown();
        });
        left.await();
        processor.closeDontDrainFirst();
    }

    /** Wait; Thread.sleep of Java 17 rounds up to milliseconds. */
    private static void park(long nanoseconds) {
        long until = System.nanoTime() + nanoseconds;
        for (long left = nanoseconds; left > 0; left = until - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }
}
