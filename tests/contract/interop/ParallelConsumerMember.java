import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.KafkaConsumer;

/** Handles records until so many different values are done; those that begin with a prefix fail and stay open. */
public class ParallelConsumerMember {
    public static void main(String[] arguments) throws Exception {
        String failing = arguments[4];
        CountDownLatch wanted = new CountDownLatch(Integer.parseInt(arguments[3]));
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[2]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("session.timeout.ms", "6000");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        var options = ParallelConsumerOptions.<String, String>builder()
            .ordering(ParallelConsumerOptions.ProcessingOrder.UNORDERED)
            .commitMode(ParallelConsumerOptions.CommitMode.PERIODIC_CONSUMER_SYNC)
            .maxConcurrency(20)
            .consumer(new KafkaConsumer<String, String>(settings))
            .build();
        var processor = ParallelStreamProcessor.<String, String>createEosStreamProcessor(options);
        Set<String> done = ConcurrentHashMap.newKeySet();
        processor.subscribe(List.of(arguments[1]));
        processor.poll(context -> {
            String value = context.getSingleConsumerRecord().value();
            if (!failing.isEmpty() && value.startsWith(failing)) {
                throw new IllegalStateException("This one stays open.");
            }
            System.out.println("handled " + value);
            if (done.add(value)) {
                wanted.countDown();
            }
        });
        boolean enough = wanted.await(60, TimeUnit.SECONDS);
        processor.closeDontDrainFirst();
        System.exit(enough ? 0 : 1);
    }
}
