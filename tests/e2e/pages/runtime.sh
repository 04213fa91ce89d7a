mkdir tests ~/datasets
echo 'import sys; print("trained", sys.argv[1:])' >train.py
echo 'def test_model(): pass' >tests/test_model.py
