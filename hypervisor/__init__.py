"""The pure core of statevisor: it decides, the edges act. Standard library only."""
