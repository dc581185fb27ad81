"""Methods: pure functions of payloads and rows. No I/O, no HTTP, no clock, no database."""
