"""From run folders to tables: collect, compare, write. No model, no network."""
