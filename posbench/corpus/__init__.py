"""Text to tokens: sources of documents, tokenizers, the cache on disk, windows for training.

May import config, terminal, machine and errors. A new source is a class in sources/ and a yaml in
conf/corpus; a new tokenizer a class in tokenizer.py and a yaml in conf/tokenizer.
"""
