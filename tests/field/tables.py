"""Tables as people have them: their size, their columns, their rows."""

from field.case import TRAIN, Case, accuracy, fails, learnable, matches, says

KAGGLE = {"d/train.csv": learnable(), "d/test.csv": "a,b\n980.5,1\n101,1\n", "d/sample_submission.csv": "id,y\n1,low\n"}

CASES = [
    Case("plain_numbers", "the table on which the other cases are built",
         {"d/train.csv": learnable()}, [TRAIN], [accuracy(0.9)]),
    Case("fewer_rows_than_a_batch", "scikit-learn's MLPClassifier: batch_size is min(200, n_samples)",
         {"d/train.csv": learnable(rows=60)}, [TRAIN], [matches(r"^test accuracy .* of \d\)")]),
    Case("any_file_name", "autogluon, lightgbm: a table is called whatever its owner calls it",
         {"d/Pump Hall 3.CSV": learnable()}, [TRAIN],
         [accuracy(0.9), says("no file is called train*: training on Pump Hall 3.CSV")]),
    Case("many_files_of_any_name", "dask#1234: a folder of exports by month is one table",
         {f"d/2024-{i:02}.csv": learnable(rows=60, seed=i) for i in range(1, 4)}, [TRAIN],
         [says("no file is called train*: training on all tables of d"), accuracy(0.8)]),
    Case("file_for_a_folder", "ultralytics#1120: data= takes a folder, people name a file",
         {"d/pumps.csv": learnable()}, ["trainer --data_dir=d/pumps.csv --target=y"],
         [fails("--data_dir=d --train_files=pumps.csv")]),
    Case("no_target", "xgboost, pycaret: a table without a word of what to learn",
         {"d/pumps.csv": learnable()}, ["trainer --data_dir=d"], [fails("--target=", "a, b, y")]),
    Case("test_rows_to_predict", "ludwig#2675, MLBox#64: Kaggle's test.csv has no column to learn",
         KAGGLE,
         [f"{TRAIN} --train_dir=run", "trainer eval run --data_dir=d"],
         [matches(r"^test accuracy (9\d|100).* of (1|2)\d\)")]),
    Case("test_rows_to_predict_said", "the same; and what becomes of these files",
         KAGGLE,
         [TRAIN], [says("d: the files test* have no column y, so they are rows to predict", "--test_share",
                        "1 other table is not used (sample_submission.csv)")]),
    Case("target_of_one_number", "scikit-learn, r2_score: a constant target has no R2",
         {"d/train.csv": "a,y\n" + "".join(f"{i},3.5\n" for i in range(60))}, [TRAIN],
         [says("target y: is 3.5 in every row, so there is nothing to learn")]),
    Case("all_rows_train", "kaggle: the last model before deployment has no rows to spare",
         {"d/train.csv": learnable()}, [f"{TRAIN} --test_share=0"],
         [says("no test: all rows are for training and validation")]),
    Case("target_misspelt", "xgboost#9747: a wrong name of a column is an error that names the nearest",
         {"d/train.csv": learnable(header="a,b,fail")}, ["trainer --data_dir=d --target=fial"],
         [fails("no column fial", "fail")]),
]
