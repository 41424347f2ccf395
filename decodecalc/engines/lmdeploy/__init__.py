"""LMDeploy: the TurboMind engine's decode attention."""
