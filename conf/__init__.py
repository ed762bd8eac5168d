# Makes conf/ importable as posbench.conf, where Hydra looks for it (pkg://posbench.conf).
