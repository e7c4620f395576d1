"""Opens, checks, reads and writes ROOT files: TTree and RNTuple, local and remote."""
