"""The option languages of four older programs, translated into ours.

A dialect is a table (spelling -> our option, their default, their meaning) and the few rules that a table cannot
express. No package below this one depends on them.
"""
