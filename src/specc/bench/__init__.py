"""`specc bench`: speculative against plain decoding of one bundle, in turn, by prompt class."""
