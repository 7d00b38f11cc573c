"""What people write and read: amounts, tables of CSV, TOML, and text that can be printed. Pure.

What the amounts and tables are about is not known here.
"""
