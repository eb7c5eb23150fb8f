// Package watch shows training runs on a page: while they go on, and afterwards. It reads the runs' folders and nothing
// else, so it works beside a trainer, after it and on a copy of its folder, and no trainer waits for it.
//
//	line.go      a line of metrics.jsonl to numbers
//	history.go   metrics.jsonl by columns, read on as it grows
//	decimate.go  the points of a curve that a picture needs: no spike is lost
//	runs.go      which folders are runs, and what is known of each
//	server.go    who may ask, and what a request may take
//	answers.go   what is answered
//	metrics.go   the latest numbers for Prometheus
//	report.go    runs on different machines as a table, and as a page that can be sent
//	page         the page: HTML, CSS and JavaScript as they are written, and a plotting library
//
// Of a run's folder only the files named in runs.go are ever opened, and no link that leads out of it is followed.
//
//	set, err := watch.Open([]string{"runs/first", "runs/second"})
//	...
//	err = watch.New(set, watch.Options{}).Serve(ctx, listener)
//
// Its known weakness: all steps of all runs are held in memory, some hundred bytes each.
package watch
