"""The methods, one package each; ``registry`` names them, ``common`` is what several share."""
