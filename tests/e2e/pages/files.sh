# The page is about the directories of an account, so it has its own instead of a DANLU_HOME.
unset DANLU_HOME
echo 'print("done")' >train.py
danlu train train.py --framework pytorch --worker 1 --name finished --host-python
danlu kernel install
