"""What both ends share: models, codec, catalogue of problems, errors."""
