touch requirements.txt serve.py
