"""Jobs of an Amazon SageMaker account: one ``CreateTrainingJob`` request per job."""
