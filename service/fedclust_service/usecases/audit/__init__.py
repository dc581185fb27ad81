"""The audit trail: sealing its entries and checking its chain."""
