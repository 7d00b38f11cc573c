"""Make a genome, and reads of samples that differ from it at some places; the places are written down."""

# Snakemake itself gives a script the name snakemake.
# ruff: noqa: F821

import random

LENGTH, READ, DEPTH = 5000, 100, 20

random.seed(1)
genome = "".join(random.choices("ACGT", k=LENGTH))
places = range(500, LENGTH, 500)
sample_genome = list(genome)
for place in places:
    sample_genome[place] = "ACGT"[("ACGT".index(genome[place]) + 1) % 4]
with open(snakemake.output.genome, "w") as file:
    file.write(f">genome\n{genome}\n")
with open(snakemake.output.variants, "w") as file:
    file.writelines(f"{place + 1}\n" for place in places)
for path in snakemake.output.reads:
    with open(path, "w") as file:
        for number in range(LENGTH * DEPTH // READ):
            begin = random.randrange(LENGTH - READ)
            read = "".join(sample_genome[begin : begin + READ])
            file.write(f"@read{number}\n{read}\n+\n{'I' * READ}\n")
