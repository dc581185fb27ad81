"""The types that sessions are described by, and the errors that lower packages raise."""
