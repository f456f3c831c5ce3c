"""Commands of plugins: what an application in the entry-point group ``parallax.commands`` promises.

The first line of the docstring of its module lists it, and is read without importing it. The application is a
``typer.Typer`` with plain help: rich help and completion of its own would slow every start down. Each of its commands
says what it does, and every option that is shown says what it is for. Its import brings no framework: what computes is
imported when it runs. An option that it does not have is a wrong usage, with exit code 2. If it takes a section of the
settings, every key of the section is an option, and says what it means.
"""
