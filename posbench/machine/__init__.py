"""The machine: devices, RAM, processes, the environment, paths, files that are whole or absent.

May import errors alone. Whatever reads the environment or writes a file has its place here.
"""
