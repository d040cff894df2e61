import io.confluent.parallelconsumer.offsets.OffsetMapCodecManager;
import java.io.BufferedReader;
import java.io.InputStreamReader;

/** Reads lines of a committed offset and its metadata; prints the highest offset that was seen, and the incomplete ones. */
public class OffsetMaps {
    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 2);
            var found = OffsetMapCodecManager.deserialiseIncompleteOffsetMapFromBase64(Long.parseLong(words[0]), words[1]);
            System.out.println(found.getHighestSeenOffset().orElse(-2L) + " " + found.getIncompleteOffsets());
        }
    }
}
