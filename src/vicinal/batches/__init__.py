"""Which examples meet in a batch.

Pairs enter; batches of exactly `size` rows leave, each of one domain and made of neighbours, so that a batch's
documents are hard negatives for one another's queries ("Contextual Document Embeddings", arXiv 2410.02525, section 4):

    surrogate.py   texts -> surrogate vectors, cached on disk
    cluster.py     a domain's vectors -> clusters
    pack.py        clusters -> batches of one size, other ones every epoch
    plan.py        all of that in one file, for pairs of one fingerprint
    sample.py      batches -> the step-by-step schedule that a training run follows, and a rank's slice of each
    filter.py      a batch and a teacher -> which documents may count as negatives
    teacher.py     a batch -> scores that depend on its corpus, to be learnt from
    show.py        a look at a batch, and how hard batches are
"""
