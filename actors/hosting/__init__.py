"""What turns servers into Ray actors, and the process that holds a Spark session."""
