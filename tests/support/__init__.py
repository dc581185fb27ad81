"""What tests share. A package: a `support.py` elsewhere on the path would hide a mere folder."""
