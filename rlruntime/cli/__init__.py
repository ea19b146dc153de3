"""The command `rljob`: one module per command, and the dispatcher in `main`.

Inside: the parsing of arguments, what is printed, and exit codes; what a command does lies in the packages below.

May import everything else, but at the top of a module only what is light (the spec, the errors, the standard library):
torch, numpy and gymnasium are imported in the handler of the command that needs them, so that the others work on a base
install.
"""
