"""What people write and read: amounts, CSV tables, TOML, and printable text. Pure.

Nothing here depends on what the amounts and tables are about.
"""
