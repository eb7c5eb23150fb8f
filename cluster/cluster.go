// Package cluster is how processes that a launcher, or an agent on each host, has started become one run.
//
//	srun -n 4 athanor train run.yaml            the same command, four times
//
//	Find(environment)   --> Launch              which of them this process is
//	Lead(launch, folder) --> Team               rank 0: waits for the others, and leads the run
//	Follow(launch, folder)                      the others: their cores or GPUs are the run's until it ends
//
//	Agent.Serve                                 athanor serve
//	Summon(addresses, key) --> Team             this process has agents start the others, and leads the run
//	Attend(pipes)                               which are like those that Follow
//
// Every launcher says in the environment which process is which, each in its own words; the table launchers has them
// all. What no launcher says is how the processes reach each other. Rank 0 listens, and says where in a file of the
// run's folder, which is shared where there is a cluster, with a key that it has drawn; only its owner can read the
// file. Where the folder is not shared, the launcher must have said where rank 0 is, and all processes must have the
// same ATHANOR_KEY (package machine) in their environment.
//
// Whoever has proved the key keeps this connection, the line, until the run ends. Its ends tell each other every second
// that they are alive, so a process that dies, is stopped or loses its network is lost within seconds, whatever else
// it was doing; a follower that is asked to stop says so, and the leader's last word is the exit code of all.
//
//	launcher.go  launchers, and what their variables mean
//	meet.go      the file, and where rank 0 can be
//	team.go      Lead; follow.go Follow; line.go what both say
//	agent.go     Agent; summon.go Summon
//	mpi.go       when bytes go over MPI, and how that ends
//
// Rank 0 plans, and sends each process the programs of its ranks, which it proves and runs (package remote); in a step it
// sends the rows of the batch. Each process writes to checkpoints what its ranks hold, and reads it from there, if it has the
// run's folder; it reads a model's weights if it sees their files.
//
// Known weakness: rank 0 reads the text; calls that are timed before there is a plan are said one by one; and of matrices whose
// columns ranks divide, or that files order otherwise, rank 0 gathers and writes what others hold, since their rows would be
// written by several hosts in turn.
package cluster
