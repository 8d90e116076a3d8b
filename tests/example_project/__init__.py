"""The example project, tested as its users would notice it break."""
