"""What attention costs, how near it comes to softmax, and which mechanism to choose: counted, timed, trained."""
