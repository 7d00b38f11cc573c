"""Write the place and the quality of each variant."""

# Snakemake itself gives a script the name snakemake.
# ruff: noqa: F821

with open(snakemake.input[0]) as calls, open(snakemake.output[0], "w") as file:
    for line in calls:
        if not line.startswith("#"):
            _, place, _, _, _, quality, *_ = line.split("\t")
            file.write(f"{place}\t{quality}\n")
