"""Being a member of a run: finding out which it is, dialling, keeping connections and records whole.

Independent of the library: both backends drive these loops.
"""
