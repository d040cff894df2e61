"""What tests of programs that use Headway need."""
