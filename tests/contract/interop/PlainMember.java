import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Does what the Java priority client does on the wire for one level: `send`s keys, or `read`s records and commits. */
public class PlainMember {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[1]);
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("group.id", arguments[3]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("session.timeout.ms", "6000");
        int count = Integer.parseInt(arguments[4]);
        if (arguments[0].equals("send")) {
            try (var producer = new KafkaProducer<String, String>(settings)) {
                for (int number = 0; number < count; number++) {
                    var sent = producer.send(new ProducerRecord<>(arguments[2], "key " + number, "java " + number));
                    System.out.println(sent.get().partition() + " key " + number);
                }
            }
            return;
        }
        settings.put("max.poll.records", "1");
        try (var consumer = new KafkaConsumer<String, String>(settings)) {
            consumer.subscribe(List.of(arguments[2]));
            long end = System.currentTimeMillis() + 60_000;
            for (int read = 0; read < count && System.currentTimeMillis() < end; ) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println("handled " + record.value());
                    read++;
                }
            }
            consumer.commitSync();
        }
    }
}
