"""`python -m demo`: a year of flights by priority through a real Apache Kafka, and then through Spark."""

import sys

INTERRUPTED = 130  # the exit code of shells after Ctrl-C


if __name__ == "__main__":
    try:
        from demo.command import main  # a Ctrl-C can come while this is imported

        sys.exit(main())
    except KeyboardInterrupt:
        print("\nStopped, and nothing is left running.")
        sys.exit(INTERRUPTED)
