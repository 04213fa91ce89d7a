cat >environment.yml <<'END'
name: digits
channels: [conda-forge]
dependencies:
  - python=3.11
  - pip
  - pip:
      - tqdm
END
