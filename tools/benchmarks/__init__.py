"""Times, memory and accuracy beside what one would use instead."""
