//! `legate-example`: the application of `docs/kubernetes.md`. It uses plain HTTP and has no knowledge
//! of the mesh. The same program is the frontend, the backend, and a client for both, because its image
//! has no shell.
#![expect(
    clippy::print_stdout,
    reason = "a command line tool talks to a terminal"
)]

mod client;
mod server;

use std::time::Duration;

use clap::{Parser, Subcommand};

/// A frontend, a backend, and a client for both.
#[derive(Parser)]
#[command(name = "legate-example", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve HTTP on a port until SIGTERM
    Serve(server::Options),
    /// Send one request, and print the response or the error
    Get {
        /// Such as http://backend/
        url: String,
    },
    /// Send requests continuously, and print how many were answered with 200 and how many were not
    Load {
        /// Such as http://backend/
        url: String,
        /// Duration in seconds
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Serve(options) => server::run(options).await?,
        Command::Get { url } => println!("{}", client::describe(client::get(&url).await)),
        Command::Load { url, seconds } => {
            println!("{}", client::load(&url, Duration::from_secs(seconds)).await);
        }
    }
    Ok(())
}
