"""The option languages of four older programs, translated into ours.

A dialect is a table (spelling -> our option, their default, their meaning) and the few rules that a table cannot say.
Nothing below this package knows of them.
"""
