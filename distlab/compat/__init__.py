"""The private parts of other libraries, one module for each, and the newest torch that was tested."""
