"""Tables as people have them: their size, their columns, their rows."""

from field.case import TRAIN, Case, accuracy, fails, learnable, matches, says

CASES = [
    Case("plain_numbers", "the table on which the other cases are built",
         {"d/train.csv": learnable()}, [TRAIN], [accuracy(0.9)]),
    Case("fewer_rows_than_a_batch", "scikit-learn's MLPClassifier: batch_size is min(200, n_samples)",
         {"d/train.csv": learnable(rows=60)}, [TRAIN], [matches(r"^test accuracy .* of \d\)")]),
    Case("all_rows_train", "kaggle: the last model before deployment has no rows to spare",
         {"d/train.csv": learnable()}, [f"{TRAIN} --test_share=0"],
         [says("no test: all rows are for training and validation")]),
    Case("target_misspelt", "xgboost#9747: a wrong name of a column is an error that names the nearest",
         {"d/train.csv": learnable(header="a,b,fail")}, ["trainer --data_dir=d --target=fial"],
         [fails("no column fial", "fail")]),
]
